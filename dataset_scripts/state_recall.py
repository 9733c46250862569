"""The published edition of ``hf_memory/state_recall``: recall through pointers that are swapped.

Usage::

    python dataset_scripts/state_recall.py --output_dir out
    python dataset_scripts/state_recall.py --push_to_hub <namespace>/state_recall
"""

from hf_memory.hub.editions import Edition, run_edition

EDITION = Edition(
    task="state_recall",
    version="1.0.0",
    shared={"num_train": 100_000, "num_validation": 3_000, "num_test": 3_000, "seed": 0},
    configs={
        "cells64_swaps64": {"length": 64, "test_lengths": (64, 128)},
        "cells128_swaps128": {"length": 128, "test_lengths": (128, 256)},
        "swaps64_alone": {"length": 64, "test_lengths": (64, 128, 256)},
        "cells64_alone": {"length": 64, "test_lengths": (64,)},
        "cells128_alone": {"length": 128, "test_lengths": (128,)},
        "cells64_swaps64_symbols16": {"length": 64, "test_lengths": (64, 128)},
        "cells8_swaps16": {"length": 16, "test_lengths": (16, 32)},
    },
)

if __name__ == "__main__":
    print(run_edition(EDITION))
