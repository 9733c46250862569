"""The published edition of ``hf_memory/mqar``: multi-query associative recall.

The configurations without ``length`` take their training lengths, and the shares of these, from their presets.

Usage::

    python dataset_scripts/mqar.py --output_dir out
    python dataset_scripts/mqar.py --push_to_hub <namespace>/mqar
"""

from hf_memory.hub.editions import Edition, run_edition

EDITION = Edition(
    task="mqar",
    version="1.0.0",
    shared={"num_train": 100_000, "num_validation": 3_000, "num_test": 3_000, "seed": 0},
    configs={
        "kv4_len64": {"length": 64, "test_lengths": (64, 128, 256)},
        "kv8_len128": {"length": 128, "test_lengths": (128, 256, 512)},
        "kv16_len256": {"length": 256, "test_lengths": (256, 512, 1024)},
        "kv64_len512": {"length": 512, "test_lengths": (512, 1024, 2048)},
        "kv64_len256": {"length": 256, "test_lengths": (256, 512, 1024)},
        "kv8_len64": {"length": 64, "test_lengths": (64, 128, 256)},
        "kv16_len64": {"length": 64, "test_lengths": (64, 128, 256)},
        "kv4_len32": {"length": 32, "test_lengths": (32, 64, 128)},
        "kv4_len64_random": {"length": 64, "test_lengths": (64, 128, 256)},
        "kv8_len64_random": {"length": 64, "test_lengths": (64, 128, 256)},
        "based_mixture": {"num_train": 180_000, "test_lengths": (64,)},
        "forgetting": {"num_train": 180_000, "test_lengths": (64,)},
        "forgetting_half": {"num_train": 180_000, "test_lengths": (64,)},
        "kv4_len64_all": {"length": 64, "test_lengths": (64, 128, 256)},
        "kv4_len64_shuffled": {"length": 64, "test_lengths": (64, 128, 256)},
        "kv8_len128_shuffled": {"length": 128, "test_lengths": (128, 256, 512)},
        "kv16_len256_shuffled": {"length": 256, "test_lengths": (256, 512, 1024)},
    },
)

if __name__ == "__main__":
    print(run_edition(EDITION))
