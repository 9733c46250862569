"""What the mixers of this package share."""

import torch


def decay_of(logit: torch.Tensor) -> torch.Tensor:
    """A decay between 0 and 1, in at least float32."""
    return torch.sigmoid(logit.to(torch.promote_types(logit.dtype, torch.float32)))
