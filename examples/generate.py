"""Quantize a model, plan a run of it, generate a text, and stream another one, within 32 MiB.

Run it from anywhere: ``.venv/bin/python examples/generate.py``. It takes seconds, and writes into a temporary folder only.
``demo.TARGET`` is a checkpoint that ships with edgedec, a folder as Hugging Face has it; put the path of your own there.
"""

from tempfile import TemporaryDirectory

from edgedec import SamplingConfig, Session, demo, plan_run, quantize_checkpoint

greedy = SamplingConfig(temperature=0)
with TemporaryDirectory() as folder:
    report = quantize_checkpoint(demo.TARGET, f"{folder}/story.edgedec", method="ternary")
    print(f"quantized: {report.parameters:,} parameters, {report.bits_per_weight:.2f} bits each")

    plan = plan_run(f"{folder}/story.edgedec", budget_bytes=32 << 20)
    print(f"planned: {plan.total_bytes:,} of {plan.budget_bytes:,} bytes, a context of {plan.ctx_size} tokens")

    with Session.open(f"{folder}/story.edgedec", budget_bytes=32 << 20) as session:
        answer = session.generate("Once upon a time", n_predict=32, sampling=greedy)
        print(f"generated in {answer.timings.peak_bytes:,} bytes: Once upon a time{answer.text}")

        print("streamed: One day, a cat", end="")
        for piece in session.stream("One day, a cat", n_predict=32, sampling=greedy):
            print(piece, end="", flush=True)
        print()
