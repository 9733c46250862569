"""What a user without the package does, run in a process in which importing it fails."""

from typing import Any


def load(first: str) -> dict[str, Any]:
    """Load what was pushed; ``first`` is the first commit of the dataset."""
    import torch
    import transformers
    from datasets import load_dataset
    from transformers import AutoModel, AutoModelForCausalLM, AutoModelForTokenClassification, pipeline

    transformers.utils.logging.set_verbosity_error()
    torch.set_num_threads(1)
    trust = {"trust_remote_code": True}
    model = AutoModelForCausalLM.from_pretrained("me/based", **trust)
    types = [
        type(AutoModel.from_pretrained("me/lru", **trust)),
        type(AutoModelForTokenClassification.from_pretrained("me/lru", revision="v2", **trust)),
        type(model),
    ]
    sizes = {
        name: {split: len(rows) for split, rows in load_dataset(name, "kv4_len64").items()}
        for name in ("ns/mqar", "hf_memory/mqar")
    }
    tagger = pipeline("token-classification", model="me/dyck", **trust)
    generated = model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=2, do_sample=False)
    model.push_to_hub("me/again")
    again = AutoModelForCausalLM.from_pretrained("me/again", **trust)
    return {
        "types": [found.__name__ for found in types],
        "sizes": sizes,
        "pinned": len(load_dataset("ns/mqar", "kv4_len64", revision=first)["train"]),
        "dyck": [[token["word"], token["entity"]] for token in tagger("( [ ] )", ignore_labels=[])],
        "generated": list(generated.shape),
        "again": all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True)),
    }
