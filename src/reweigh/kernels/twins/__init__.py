"""The kernels' twins in NumPy: the same names, signatures and results (to rounding), step by step
or in chunks. They serve small logs, installations without Numba, and the tests."""
