"""What the mixers of this package share."""

import torch


def share_of(logit: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A share between 0 and 1."""
    return torch.sigmoid(logit.float()).to(dtype)
