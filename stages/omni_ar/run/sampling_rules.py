"""The sampling parameters that a stage supports, and its defaults."""

from omni.errors import InputError
from omni.sampling import GREEDY, PARAMETERS, SamplingParams
from omni_ar.processors import ProcessorRegistry
from omni_ar.sampling.resolve import check_sampling, resolve_sampling


class SamplingRules:
    """Checks and resolves the sampling parameters of a stage's requests."""

    def __init__(
        self,
        stage: str,
        defaults: SamplingParams,
        *,
        vocab_size: int,
        processors: ProcessorRegistry,
        gives_logits: bool,
        own_prompts: bool,
        predicts_codes: bool,
    ) -> None:
        """gives_logits: as of `TokenSource`. own_prompts: whether the prompt consists of tokens of this stage."""
        self._stage = stage
        self._defaults = defaults.with_defaults(GREEDY)
        self._vocab_size = vocab_size
        self._processors = processors
        self._gives_logits = gives_logits
        self._own_prompts = own_prompts
        self._predicts_codes = predicts_codes

    def check(self, requested: SamplingParams, field: str) -> None:
        """Raises InputError, naming `field`, for parameters that this stage does not support. In any thread."""
        check_sampling(requested, self._defaults, field, self._vocab_size, self._processors)
        self._check_scores(requested, field)
        self._check_codes(requested, field)

    def resolve(self, requested: SamplingParams) -> SamplingParams:
        """The requested parameters over the stage's defaults. Raises InputError as `check`, except for logits processors."""
        sampling = resolve_sampling(requested, self._defaults, self._stage, self._vocab_size)
        field = f"sampling.{self._stage}"
        self._check_scores(sampling, field)
        self._check_codes(requested, field)
        return sampling

    def _check_scores(self, sampling: SamplingParams, field: str) -> None:
        if sampling.logprobs is not None and not self._gives_logits:
            problem = f"is given, and {self._stage} receives its tokens without logits"
            raise InputError(f"{field}.logprobs", problem, "leave it out")
        if sampling.prompt_logprobs is not None and not self._own_prompts:
            problem = f"is given, and the prompt of {self._stage} is not a row of its own tokens"
            raise InputError(f"{field}.prompt_logprobs", problem, "leave it out")

    def _check_codes(self, requested: SamplingParams, field: str) -> None:
        if self._predicts_codes:
            return
        for name, parameter in PARAMETERS.items():
            if parameter.of_codes and getattr(requested, name) is not None:
                problem = f"is given, and a token of {self._stage} begins no frame of codes"
                raise InputError(f"{field}.{name}", problem, "leave it out")
