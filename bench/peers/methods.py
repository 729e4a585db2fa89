"""The attention of others, each as a function of q, k and v.

Shapes: q, k and v are [batch, heads, tokens, width] unless a method is TOKENS_FIRST: [batch, tokens, heads, width].
A method may take further inputs, whose gradients are then part of its backward.
"""

import abc


class Missing(Exception):
    """A method that is not here, or does not do what it is asked for. Says why."""


class Method(abc.ABC):
    tokens_first = False

    def __init__(self, torch):
        self.torch = torch

    def further_inputs(self, q):
        """Inputs beside q, k and v."""
        return ()

    @abc.abstractmethod
    def causal(self, q, k, v, *further):
        """Each query sees the keys up to its own."""

    def step(self, q, k, v, *further):
        """One query that sees all keys."""
        raise Missing("has no step over a cache of keys and values")


class NaiveSoftmax(Method):
    """softmax(q k^T / sqrt(D)) v with its N x N scores in memory."""

    def causal(self, q, k, v):
        scores = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
        ones = self.torch.ones(scores.shape[-2:], dtype=self.torch.bool, device=q.device)
        return scores.masked_fill(ones.triu(1), float("-inf")).softmax(-1) @ v

    def step(self, q, k, v):
        return ((q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5).softmax(-1) @ v


class FusedSoftmax(Method):
    """torch's scaled_dot_product_attention by one of its backends and no other."""

    backend = ""

    def causal(self, q, k, v):
        return self._attend(q, k, v, is_causal=True)

    def step(self, q, k, v):
        return self._attend(q, k, v, is_causal=False)

    def _attend(self, q, k, v, is_causal):
        from torch.nn.attention import SDPBackend, sdpa_kernel

        with sdpa_kernel(getattr(SDPBackend, self.backend)):
            try:
                return self.torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
            except RuntimeError as refused:
                if "No available kernel" in str(refused):
                    raise Missing(f"torch has no {self.backend} kernel for {q.dtype} and width {q.shape[-1]}")
                raise


class FlashSoftmax(FusedSoftmax):
    backend = "FLASH_ATTENTION"


class CudnnSoftmax(FusedSoftmax):
    backend = "CUDNN_ATTENTION"


class EfficientSoftmax(FusedSoftmax):
    backend = "EFFICIENT_ATTENTION"


class PlainLinear(Method):
    """(1 + q k^T) below the diagonal, its rows divided by their sums, times v."""

    def causal(self, q, k, v):
        weights = (1 + q @ k.transpose(-1, -2)).tril()
        return (weights @ v) / weights.sum(-1, keepdim=True)


class CumulativeLinear(Method):
    """The sums of k v^T up to each token, all N of them in memory, as linear attention for speculative decoding has them."""

    def causal(self, q, k, v):
        products = (k.unsqueeze(-1) * v.unsqueeze(-2)).cumsum(-3)
        counts = self.torch.arange(1, q.shape[-2] + 1, dtype=q.dtype, device=q.device).unsqueeze(-1)
        sums = v.cumsum(-2) + (q.unsqueeze(-2) @ products).squeeze(-2)
        return sums / (counts + (q * k.cumsum(-2)).sum(-1, keepdim=True))


class FlaLinear(Method):
    """flash-linear-attention's chunk_linear_attn, normalised."""

    tokens_first = True
    normalize = True

    def causal(self, q, k, v):
        from fla.ops.linear_attn import chunk_linear_attn

        return chunk_linear_attn(q, k, v, normalize=self.normalize)[0]


class FlaSums(FlaLinear):
    """The same without what its rows are divided by: less than attention, and less to do."""

    normalize = False


class FlaGated(Method):
    """flash-linear-attention's chunk_gla: Gated Linear Attention, with the gradient of its gates."""

    tokens_first = True

    def further_inputs(self, q):
        return (self.torch.nn.functional.logsigmoid(self.torch.randn_like(q)) / 16,)

    def causal(self, q, k, v, gates):
        from fla.ops.gla import chunk_gla

        return chunk_gla(q, k, v, gates)[0]


METHODS = {
    "softmax naive": NaiveSoftmax,
    "softmax flash": FlashSoftmax,
    "softmax cudnn": CudnnSoftmax,
    "softmax efficient": EfficientSoftmax,
    "linear plain": PlainLinear,
    "linear cumulative": CumulativeLinear,
    "fla linear": FlaLinear,
    "fla sums": FlaSums,
    "fla gla": FlaGated,
}

COPY = "copy torch"
