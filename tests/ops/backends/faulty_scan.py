"""A selective scan that is right and fast, the compiled loop of the CPU, or has one fault of its own."""

import os
import signal
import time

import torch

from hf_memory.ops.backends import numba_selective_scan

PACKAGE = "torch"
GRADIENTS = ("x", "dt", "A", "B", "C", "initial_state")


def refusal(*, device, dtype, **_):
    return None if dtype == torch.float32 else f"it does not take {dtype}"


def make(fault):
    """The functions ``scan`` and ``gradient`` of a kernel with a fault."""

    def scan(*arguments):
        if fault == "raises":
            raise RuntimeError("an illegal memory access\nwas encountered")
        if fault == "hangs":
            time.sleep(600)
        if fault == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "finds no memory":
            raise torch.OutOfMemoryError("out of memory")
        y, state, starts = numba_selective_scan.scan(*arguments)
        if fault == "slow":
            time.sleep(0.3)
        if fault == "final state":
            state = state * 1.001
        if fault == "prints":
            print('{"stage": "compared"}')
        return y, state, starts

    def gradient(*arguments):
        found = list(numba_selective_scan.gradient(*arguments))
        if fault in GRADIENTS:
            index = GRADIENTS.index(fault)
            found[index] = found[index] * 1.001
        return tuple(found)

    return scan, gradient
