"""The Near ties page."""

from app.page import Page, PageSetting, words

# Thresholds of a margin in logits: a sequence of 1, 2, 5 from well below a step of bfloat16 at
# logits of 8 (0.0625) on.
LOGIT_STEPS = (
    "0",
    "0.001",
    "0.002",
    "0.005",
    "0.01",
    "0.02",
    "0.05",
    "0.1",
    "0.2",
    "0.5",
    "1",
    "2",
    "5",
    "10",
)
PAGE = Page(
    "near_ties",
    "Near ties",
    "run",
    (
        PageSetting("threshold", "threshold", 4, span=(0, 64)),
        PageSetting("logits", "threshold_logits", "0.1", {step: step for step in LOGIT_STEPS}),
        PageSetting("unit", "threshold_unit", "ULPs", {"ulps": "ULPs", "logits": "logits"}),
        PageSetting("of", "near_ties_of", "this prompt", words(["this prompt", "all prompts"])),
    ),
    absent=lambda _, pair: "" if pair.summary.near_ties else "none",
)
