"""Weights for a small model to start from, so that it learns to copy in minutes."""

from __future__ import annotations

import torch
from transformers import LlamaForCausalLM

_LOOK_BACK = 5.0  # long enough for a head to look at its one token, short enough to be unlearned


@torch.no_grad()
def start_as_copier(model: LlamaForCausalLM) -> None:
    """Initialise attention with the two halves of an induction head, and leave it to training to join them.

    A head that copies needs one layer in which a token learns what stands before it, and one that looks for
    a token by what stands before it and says it (Olsson et al., arXiv:2209.11895). From the usual
    initialisation such heads stay at chance for thousands of steps with thousands of words; from this one
    they form in some hundred. In the first layer all heads but one look back 1, 2, 3 … tokens: their query
    and key biases are equal but for the rotation that the position encoding gives that distance. In the other
    layers attention says what it looks at, ``W_O W_V = 1``, in embeddings long enough to be heard.
    """
    model.model.embed_tokens.weight.normal_(0.0, 0.1)
    config = model.config
    half = config.hidden_size // config.num_attention_heads // 2
    angles = 10_000.0 ** (-torch.arange(half) / half)  # rotary encoding, arXiv:2104.09864, eq. 15
    for number, layer in enumerate(model.model.layers):
        attention = layer.self_attn
        torch.nn.init.orthogonal_(attention.v_proj.weight)
        if number > 0:
            attention.o_proj.weight.copy_(attention.v_proj.weight.T)
            continue
        torch.nn.init.orthogonal_(attention.o_proj.weight)
        for back in range(1, config.num_attention_heads):
            head = slice((back - 1) * 2 * half, back * 2 * half)
            attention.k_proj.bias[head] = _LOOK_BACK * torch.cat([torch.ones(half), torch.zeros(half)])
            turned = torch.cat([torch.cos(back * angles), -torch.sin(back * angles)])
            attention.q_proj.bias[head] = _LOOK_BACK * turned
