"""sigmoid_gate_layer_norm: layer_norm of input * sigmoid(gate), over trailing dimensions.

Source: Mamba 2, layernorm_gated with norm_before_gate false; vLLM, layernorm_guard, has the sigmoid alone.
See `verifier.ops.rows.gates_first`.
"""

from __future__ import annotations

from verifier.ops.layer_norm import OP as NORM
from verifier.ops.rows.gates_first import gate_first_op

OP = gate_first_op(NORM, "sigmoid", centred=True)
