"""Behind the door to kernels: the choice of a backend, and the loops in numba, Triton and other packages."""
