"""Text in, text out: a list of requests in one call, with sampling of your own.

python examples/text_only.py MODEL
"""

import argparse
from typing import Any

from omni import Omni, SamplingParams

REQUESTS: list[str | list[dict[str, Any]]] = [
    # A string is a chat of one message.
    "What is a circle?",
    [{"role": "system", "content": "Answer in one word."}, {"role": "user", "content": "Which color is the sky?"}],
    [
        {"role": "user", "content": "Hello."},
        {"role": "assistant", "content": "Hello. What can I do for you?"},
        {"role": "user", "content": "Tell me the time."},
    ],
]

# Other parameters have the defaults of the checkpoint. With a seed, the same request gives the same answer beside any other
# requests.
SAMPLING = SamplingParams(temperature=0.7, top_p=0.9, repetition_penalty=1.05, max_tokens=64, seed=1)


def main() -> None:
    parser = argparse.ArgumentParser(description="Text in, text out.")
    parser.add_argument("model")
    arguments = parser.parse_args()

    # Stage options can be set by path, as with `omni run --set`.
    with Omni(arguments.model, overrides={"thinker.max_num_seqs": 8}) as omni:
        # They run together and come back in order. One that fails has an `error`; the others go on.
        for number, result in enumerate(omni.generate(REQUESTS, modalities=("text",), sampling=SAMPLING, stream=False)):
            if result.error is not None:
                print(f"{number}: {result.error}")
                continue
            print(f"{number}: {result.text.strip()}")
            print(f"   {result.usage.prompt_tokens} tokens in, {sum(result.usage.tokens.values())} out", end=", ")
            print(", ".join(f"{stage}: {reason}" for stage, reason in result.finish_reasons.items()))


if __name__ == "__main__":
    main()
