"""Decays of any sign: the running product of the signs moves from the state to what is written and read."""

import torch
from torch import Tensor


class Signs:
    """With P_t the product of the signs up to step t, the state P_t S_t decays by the sizes of the decays alone.

    Args:
        sign: Signs of the decays (B, T, H) or (B, T, H, K), 1 or -1; None for 1 everywhere.
    """

    def __init__(self, sign: Tensor | None):
        self.product = None
        if sign is not None:
            # Products of -1 are counted and not multiplied: counts are exact in every dtype, and have no gradient.
            odd = (sign.detach() < 0).cumsum(1) % 2
            product = 1 - 2 * odd.to(sign.dtype)
            self.product = product if sign.dim() == 4 else product.unsqueeze(-1)

    def __call__(self, tensor: Tensor) -> Tensor:
        """A key, or a query that reads after its step (B, T, H, K), beside the state P_t S_t."""
        return tensor if self.product is None else tensor * self.product

    def before(self, tensor: Tensor) -> Tensor:
        """A query that reads before its step."""
        if self.product is None:
            return tensor
        return tensor * torch.cat((torch.ones_like(self.product[:, :1]), self.product[:, :-1]), dim=1)

    def last(self, state: Tensor) -> Tensor:
        """The state (B, H, K, V) itself after the last step."""
        return state if self.product is None else state * self.product[:, -1].unsqueeze(-1)
