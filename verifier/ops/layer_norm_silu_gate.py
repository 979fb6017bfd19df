"""layer_norm_silu_gate: the output of layer_norm times gate * sigmoid(gate), over trailing dimensions.

Source: flash-linear-attention, fused_norm_gate; see `verifier.ops.rows.gates`.
"""

from __future__ import annotations

from verifier.ops.layer_norm import OP as NORM
from verifier.ops.rows.gates import gated_op

OP = gated_op(NORM, "silu", centred=True)
