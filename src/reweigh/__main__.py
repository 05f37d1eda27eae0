"""`python -m reweigh` is the command `reweigh`."""

from reweigh.cli.app import main

if __name__ == "__main__":
    main()
