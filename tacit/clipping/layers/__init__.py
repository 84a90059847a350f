"""How each kind of layer measures and adds up per-record gradients.

`RULES` maps torch functions to rules for calls with trainable parameters, `REWRITES` to
replacements that are made of such calls, `QUICKER` to those that only take less time, `ALONE` to
those inside modules that run record by record. `READERS` maps nodes of autograd's graph to what a
rule would have found at the call. Modules are not looked at: a layer is what it calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F

from tacit.clipping.layers import elementwise, recurrent, reopened, selecting
from tacit.clipping.layers.bag import embedding_bag
from tacit.clipping.layers.conv import convolution, read_convolution, transposed_convolution
from tacit.clipping.layers.embedding import embedding, embedding_of_one_record, read_embedding
from tacit.clipping.layers.layer_norm import layer_norm, rms_norm
from tacit.clipping.layers.linear import linear, matmul, read_affine, read_linear
from tacit.clipping.layers.normalisation import batch_norm, group_norm, instance_norm
from tacit.clipping.layers.operation import Rule
from tacit.clipping.layers.reading import Reader

RULES: Mapping[Callable[..., Any], Rule] = {
    F.linear: linear,
    torch.matmul: matmul,
    torch.mm: matmul,
    torch.Tensor.matmul: matmul,
    torch.Tensor.mm: matmul,
    F.conv1d: convolution,
    F.conv2d: convolution,
    F.conv3d: convolution,
    F.conv_transpose1d: transposed_convolution,
    F.conv_transpose2d: transposed_convolution,
    F.conv_transpose3d: transposed_convolution,
    F.embedding: embedding,
    F.embedding_bag: embedding_bag,
    F.group_norm: group_norm,
    F.instance_norm: instance_norm,
    F.batch_norm: batch_norm,
    F.layer_norm: layer_norm,
    F.rms_norm: rms_norm,
    torch.prelu: elementwise.prelu,
    torch.add: elementwise.addition,
    torch.Tensor.add: elementwise.addition,
    torch.sub: elementwise.subtraction,
    torch.Tensor.sub: elementwise.subtraction,
    torch.mul: elementwise.multiplication,
    torch.Tensor.mul: elementwise.multiplication,
    torch.Tensor.expand: elementwise.expansion,
}
REWRITES: Mapping[Callable[..., Any], Callable[..., Any]] = {
    F.multi_head_attention_forward: reopened.multi_head_attention,
    torch.autograd.grad: reopened.gradients,
    torch.lstm: recurrent.sequence(recurrent.lstm_step),
    torch.gru: recurrent.sequence(recurrent.gru_step),
    torch.rnn_tanh: recurrent.sequence(recurrent.tanh_step),
    torch.rnn_relu: recurrent.sequence(recurrent.relu_step),
    torch.lstm_cell: recurrent.cell(recurrent.lstm_step),
    torch.gru_cell: recurrent.cell(recurrent.gru_step),
    torch.rnn_tanh_cell: recurrent.cell(recurrent.tanh_step),
    torch.rnn_relu_cell: recurrent.cell(recurrent.relu_step),
}
QUICKER: Mapping[Callable[..., Any], Callable[..., Any]] = {
    F.relu: selecting.relu,
    torch.relu: selecting.relu,
    torch.Tensor.relu: selecting.relu,
    F.max_pool2d: selecting.max_pool2d,
}
"""Not for models with modules that run record by record: a checkpoint in one of them would find
other tensors when it opens, outside of the module, than it found inside."""
REWRITES_AND_QUICKER: Mapping[Callable[..., Any], Callable[..., Any]] = {**REWRITES, **QUICKER}
ALONE: Mapping[Callable[..., Any], Callable[..., Any]] = {F.embedding: embedding_of_one_record}
READERS: Mapping[str, Reader] = {
    "AddmmBackward0": read_affine,
    "MmBackward0": read_linear,
    "ConvolutionBackward0": read_convolution,
    "EmbeddingBackward0": read_embedding,
}
