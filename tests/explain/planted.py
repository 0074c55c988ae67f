"""The faults that are planted, and what must be said of each."""

from __future__ import annotations

import numpy as np

from tests.explain import faults as f
from tests.explain.faults import STEP, UP, Fault

FAULTS = (
    Fault("learning rate doubled", f.rate_doubled, "learning-rate", ["2 times the recipe's"], publish=f.as_recorded),
    Fault("learning rate of the next step, unrecorded", f.rate_of_next_step, "learning-rate", ["that of step 6"]),
    Fault("learning rate 1.2345 times, unrecorded", f.rate_odd, "learning-rate", ["1.2345 times"]),
    Fault("weight decay off", f.scalars(weight_decay=0.0), "weight-decay", ["weight decay off"]),
    Fault("weight decay off", f.scalars(weight_decay=0.0), "weight-decay", ["weight decay off"], hidden=True),
    Fault("weight decay 0.0317", f.scalars(weight_decay=0.0317), "weight-decay", ["weight decay 0.0317 "]),
    Fault("weight decay on norms too", f.decay_everywhere, "weight-decay", ["norms included"]),
    Fault("clipping off", f.clip_off, "clipping", ["clipping off"]),
    Fault("beta2 0.999", f.scalars(beta2=0.999), "betas", ["0.999"]),
    Fault("eps 1e-6", f.scalars(eps=float(np.float32(1e-6))), "eps", ["eps 1e-06"]),
    Fault("bias correction off by one", f.scalars(update=STEP), "bias-correction", ["update 5 instead of 6"]),
    Fault("first moment zeroed", f.update_from(f.momentum_zeroed), "moments", ["first moment zeroed"]),
    Fault("one parameter not updated", f.result(f.frozen), "not-updated", [UP]),
    Fault("one parameter not updated", f.result(f.frozen), "not-updated", [UP], hidden=True),
    Fault("stale parameters in the update", f.update_from(f.stale_parameters), "stale-state", ["parameters stale"]),
    Fault("one bit of one element flipped", f.result(f.one_bit), "bit-flip", [f"param {UP} [3, 5]", "one bit"]),
    Fault("parameters rounded to bfloat16", f.result(f.bfloat16), "rounded", ["bfloat16"]),
    Fault("batch of the step before", f.tokens(lambda now, t: now.previous_tokens), "batch", ["batch of step 4"]),
    Fault("sequences permuted", f.tokens(lambda now, t: t[[0, 3, 2, 1, 4, 5]]), "sequence",
          ["sequence 3 of the batch in the place of sequence 1",
          "sequence 1 of the batch in the place of sequence 3"]),
    Fault("one token replaced", f.tokens(f.one_token), "token", ["token 7 of sequence 4"]),
    Fault("one token replaced", f.tokens(f.one_token), "token", ["token 7 of sequence 4"], hidden=True),
    Fault("one target replaced", f.one_target, "token", ["token 4 of sequence 3", "as a target only"]),
    Fault("one sequence used twice", f.tokens(f.one_sequence), "sequence",
          ["sequence 0 of the batch in the place of sequence 3"]),
    Fault("one rank's micro-batch left out", f.added(f.one_left_out), "left-out", ["micro-batch 1 left out"]),
    Fault("one micro-batch counted twice", f.added(f.one_twice), "counted-twice", ["micro-batch 2 counted twice"]),
    Fault("gradients folded in binary32", f.folded, "fold", ["one after the other"]),
    Fault("buffer of the gradient not cleared", f.not_cleared, "not-cleared", ["step 4"]),
    Fault("stale gradient", f.stale_gradient, "stale-gradient", ["step 4"]),
    Fault("one rank with stale weights", f.stale_rank, "stale-weights", ["micro-batch 2"]),
    Fault("stale rows of one weight", f.stale_rows, "stale-weights", [f"a stale {UP}"]),
    Fault("gradient divided by another count", f.own_tokens, "divided", ["the tokens of one micro-batch"]),
    Fault("head of 14 bits", f.recipe(f.head_14), "numerics", ["14 in the head"]),
    Fault("z-loss off", f.recipe(f.z_off), "z-loss", ["z-loss off"]),
    Fault("norm without the embedding", f.norm_without_embedding, "norm", ["without model.embed_tokens.weight"]),
    Fault("one op wrong, forward", f.one_op_forward, "", ["micro-batch 1 alone", "the forward pass departs"],
          "forward, model.layers.0.self_attn.k_norm.weight: rms_norm_forward"),
    Fault("one op wrong, backward", f.one_op_backward, "", ["micro-batch 0 alone", "the backward pass departs"],
          "backward, model.layers.1.mlp: swiglu_backward"),
    Fault("loss of the last micro-batch only", f.loss_of_last, "loss", ["micro-batch 2 over all tokens"],
          publish=f.as_recorded),
    Fault("another seed", f.other_seed("trainer.run"), "initialisation", ["seed 42 instead of 7"], at_start=True,
          publish=f.other_seed("trainer.recheck")),
)  # fmt: skip
