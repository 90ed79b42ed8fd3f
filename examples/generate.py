"""Quantize a model, plan a run of it, generate a text, and stream another one, within 32 MiB.

Run it from anywhere: ``.venv/bin/python examples/generate.py``. It takes seconds, and writes into a temporary folder only.
"""

from tempfile import TemporaryDirectory

from edgedec import SamplingConfig, Session, plan_run, quantize_checkpoint
from edgedec.demo import TARGET  # a checkpoint that ships with edgedec: a folder as Hugging Face has it

BUDGET_BYTES = 32 << 20
GREEDY = SamplingConfig(temperature=0)

with TemporaryDirectory() as folder:
    report = quantize_checkpoint(TARGET, f"{folder}/story.edgedec", method="ternary")
    print(f"quantized: {report.parameters:,} parameters, {report.bits_per_weight:.2f} bits each")

    plan = plan_run(f"{folder}/story.edgedec", budget_bytes=BUDGET_BYTES)
    print(f"planned: {plan.total_bytes:,} of {BUDGET_BYTES:,} bytes, a context of {plan.ctx_size} tokens")

    with Session.open(f"{folder}/story.edgedec", budget_bytes=BUDGET_BYTES) as session:
        answer = session.generate("Once upon a time", n_predict=32, sampling=GREEDY)
        print(f"generated: Once upon a time{answer.text}")
        print(f"took {answer.timings.peak_bytes:,} bytes, {answer.timings.predicted_per_second:.0f} tokens/s")

        print("streamed: One day, a cat", end="")
        for piece in session.stream("One day, a cat", n_predict=32, sampling=GREEDY):
            print(piece, end="", flush=True)
        print()
