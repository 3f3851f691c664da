"""An objective: `prgec run --objective ipo`."""

from __future__ import annotations

import numpy as np

from prgec.runtime.training.objectives import Answers, Judged, Numbers, Objective


def ipo(answers: Answers, numbers: Numbers) -> Judged:
    """Return identity preference optimisation: the margin over the reference is to be 1 / (2 beta).

    "A General Theoretical Paradigm to Understand Learning from Human Preferences" (Azar et al., arXiv 2310.12036),
    equation 17. Even rows are the chosen answers, odd ones the rejected.

    Args:
        answers: Log-likelihoods of the rows of one call.
        numbers: Numbers of the run; beta is one.
    """
    gain = answers.logp - answers.reference
    margin = gain[0::2] - gain[1::2]
    short = margin - 0.5 / numbers.beta
    slope = np.empty_like(gain)
    slope[0::2], slope[1::2] = 2.0 * short / len(margin), -2.0 * short / len(margin)
    return Judged(
        loss=float((short**2).mean()), slope=slope, margin=float(margin.mean()), accuracy=float((margin > 0.0).mean())
    )


IPO = Objective(name="ipo", judge=ipo, beta=0.1, needs_reference=True)
