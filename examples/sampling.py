"""Say how a text must look: as JSON of a schema, up to a stop string, in several versions, with its log-probabilities.

python examples/sampling.py MODEL
"""

import argparse
import json
import math

from omni import Omni, SamplingParams, StructuredOutput

SCHEMA = {
    "type": "object",
    "properties": {
        "color": {"enum": ["red", "green", "blue"]},
        "sides": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["color", "sides"],
    "additionalProperties": False,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Say how a text must look.")
    parser.add_argument("model")
    arguments = parser.parse_args()

    with Omni(arguments.model) as omni:
        # Whatever the model would rather say, this is JSON, and of this schema.
        sampling = SamplingParams(structured=StructuredOutput(json=SCHEMA), max_tokens=200, seed=1)
        result = omni.generate("Describe a shape.", modalities=("text",), sampling=sampling, stream=False)
        shape = json.loads(result.text)
        print(f"a {shape['color']} shape with {shape['sides']} sides")

        # Three answers to one question. Alone, the first of them would be the same: a seed fixes each by its number.
        sampling = SamplingParams(temperature=1.0, stop=(".", "\n"), max_tokens=16, seed=1)
        result = omni.generate("Name a color.", modalities=("text",), sampling=sampling, n=3, stream=False)
        for number, answer in enumerate((result, *result.alternatives)):
            print(f"{number}: {answer.text.strip()!r} ({answer.finish_reasons})")

        # The log-probability of each token, and the most likely tokens.
        sampling = SamplingParams(logprobs=2, max_tokens=4, seed=1)
        result = omni.generate("Name a color.", modalities=("text",), sampling=sampling, stream=False)
        for token in result.logprobs:
            best = ", ".join(f"{i} with {math.exp(logprob):.1%}" for i, logprob in token.top.items())
            print(f"id {token.id} had {math.exp(token.logprob):.1%}; likeliest: {best}")


if __name__ == "__main__":
    main()
