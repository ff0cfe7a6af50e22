"""Cut a stage into two ranks, each with half of its layers, and record when both launch and run their steps.

python examples/two_ranks.py MODEL [--places cuda:0,cuda:1] [--out two_ranks.json]

Then `omni timeline two_ranks.json` explains the order of the steps, and `--picture two_ranks.png` draws it.
"""

import argparse

from omni import Omni, SamplingParams

QUESTIONS = ["What is a circle?", "How many sides has a square?", "Which color is the sky?", "Who are you?"]


def main() -> None:
    parser = argparse.ArgumentParser(description="Record the steps of two ranks.")
    parser.add_argument("model")
    parser.add_argument("--stage", default="thinker")
    parser.add_argument(
        "--places", default="cpu,cpu/2", help="of rank 0, which has the last layer range, and of rank 1"
    )
    parser.add_argument("--out", default="two_ranks.json")
    arguments = parser.parse_args()

    device = arguments.places.partition(",")[0].partition("/")[0]
    cut = {f"{arguments.stage}.pipeline_parallel": 2, f"{arguments.stage}.place": arguments.places}
    sampling = SamplingParams(max_tokens=40, ignore_eos=True, seed=1)
    with Omni(arguments.model, device=device, overrides=cut, timeline=arguments.out) as omni:
        # Half of the requests decode in each batch. Later ones bring prompts in between.
        for result in omni.generate(QUESTIONS * 3, modalities=("text",), sampling=sampling, stream=False):
            print(result.text.strip()[:60])


if __name__ == "__main__":
    main()
