"""rms_norm_one_plus_weight: rms_norm with 1 + weight in the place of weight, over trailing dimensions.

Source: see `verifier.ops.rows.offsets`.
"""

from __future__ import annotations

from verifier.ops.rms_norm import OP as NORM
from verifier.ops.rows.offsets import offset_op

OP = offset_op(NORM, centred=False)
