"""The study of verdicts: are green ones right, and right ones green, in hard worlds?"""
