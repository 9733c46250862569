"""The published edition of ``hf_memory/updating_mqar``: associative recall with keys that are bound again.

Usage::

    python dataset_scripts/updating_mqar.py --output_dir out
    python dataset_scripts/updating_mqar.py --push_to_hub <namespace>/updating_mqar
"""

from hf_memory.hub.editions import Edition, run_edition

EDITION = Edition(
    task="updating_mqar",
    version="1.0.0",
    shared={"num_train": 100_000, "num_validation": 3_000, "num_test": 3_000, "seed": 0},
    configs={
        "kv4_len64_u25_r1": {"length": 64, "test_lengths": (64, 128, 256)},
        "kv4_len64_u25_r16": {"length": 64, "test_lengths": (64, 128, 256)},
        "kv8_len128_u25_r1": {"length": 128, "test_lengths": (128, 256, 512)},
        "kv8_len128_u25_r16": {"length": 128, "test_lengths": (128, 256, 512)},
        "kv16_len256_u25_r1": {"length": 256, "test_lengths": (256, 512, 1024)},
        "kv16_len256_u25_r16": {"length": 256, "test_lengths": (256, 512, 1024)},
    },
)

if __name__ == "__main__":
    print(run_edition(EDITION))
