"""Copies of a policy that answer while the learner changes the policy itself."""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from art_gym.errors import did_you_mean
from art_trainer.sampler import SamplingParams
from art_trainer.serving.agent_chat import AgentChat
from art_trainer.serving.asked import Asked, Choice
from art_trainer.serving.errors import ContextFull, ModelNotFound, Overloaded, ShuttingDown
from art_trainer.serving.live_sampler import Question
from art_trainer.serving.loaded_version import LoadedVersion, fresh
from art_trainer.serving.model_copy import copied_model
from art_trainer.serving.replies import Ends
from art_trainer.serving.wire import TokenTexts
from art_trainer.stop_strings import StopStrings
from art_trainer.transformers_policy import TransformersPolicy
from art_trainer.web.errors import ApiError

_LONGEST_CONTEXT = 2**17
"""Most tokens of prompt and reply where the model itself has no limit."""


@dataclass(frozen=True, slots=True)
class Manner:
    """How the replies of a request are sampled.

    Attributes:
        sampling: The distribution; what ends a reply does not count.
        ends: Texts that end a reply.
        stop_tokens: Tokens that end a reply, besides the policy's.
        alternatives: How many of the most likely tokens to note in each place.
        count: How many replies to each prompt.
        seed: Of their randomness; ``None`` leaves it to the server.
        version: The version that shall sample them; ``None`` for the newest.
    """

    sampling: SamplingParams
    ends: Ends
    stop_tokens: tuple[int, ...] = ()
    alternatives: int = 0
    count: int = 1
    seed: int | None = None
    version: int | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    """A context to be continued."""

    token_ids: list[int]
    longest: int
    """Most tokens of a reply."""


class ServedPolicy:
    """A policy's model, copied, with a sampler that all clients share; a context manager.

    A copy takes as much memory as the weights that are trained; weights that are frozen, as below a LoRA
    adapter, are the policy's own. A reply is sampled from beginning to end by the weights it began with, and
    follows from its prompt, its seed and these, not from what it is batched with.

    Where players may be some versions behind, an episode's next reply is asked of a version that is not the
    newest any more. ``past_versions`` keeps those: each is one more copy, made at once, and one more cache of
    ``max_batch`` contexts while it is used. The newest does then not pause for an update.

    Args:
        policy: Whose model, tokenizer, limits and way to sample are served.
        name: What clients call it; by default the policy's name.
        max_batch: Most replies that are sampled at one time by one version; by default as many as the policy
            samples.
        max_waiting: Most replies that wait for that; more are refused.
        past_versions: How many versions before the newest are served too, by their names with the version.
        rng_seed: Seeds the replies of clients that send no seed; ``None`` takes the system's randomness.

    Raises:
        ValueError: For a negative ``past_versions``.

    Attributes:
        name: What clients call it.
        chat: How messages become tokens.
        texts: What single tokens say.
        context_limit: Most tokens of prompt and reply.
    """

    def __init__(
        self,
        policy: TransformersPolicy,
        *,
        name: str | None = None,
        max_batch: int | None = None,
        max_waiting: int = 1024,
        past_versions: int = 0,
        rng_seed: int | None = None,
    ) -> None:
        if past_versions < 0:
            raise ValueError(f"past_versions is at least 0, got {past_versions}")
        self._source = policy.model
        # The learner's thread uses the other one, and tokenizers do not take two at a time.
        tokenizer = copy.deepcopy(policy.tokenizer)
        versions = (*[None] * past_versions, policy.version)
        self._loaded = [_load(policy, tokenizer, version, max_batch) for version in versions]
        """The newest stands last, and first the one that is given up next."""
        self.name = name or policy.name
        self.chat = AgentChat(tokenizer)
        self.texts = TokenTexts(self.chat.decode)
        self.context_limit = policy.max_context or _LONGEST_CONTEXT
        self._vocabulary = _vocabulary(policy.model)
        self._max_waiting = max_waiting
        self._rng = np.random.default_rng(rng_seed)
        self._lock = threading.Lock()
        self._updating = threading.Lock()

    @property
    def version(self) -> int:
        """The version of the weights that requests from now on are answered with."""
        return self.versions[0]

    @property
    def versions(self) -> list[int]:
        """All versions that can be asked for by name, the newest first."""
        with self._lock:
            return [one.version for one in reversed(self._loaded) if one.version is not None]

    @property
    def sampling(self) -> SamplingParams:
        """How replies are sampled where a client does not say."""
        return self._newest.policy.sampling

    @property
    def stop_token_ids(self) -> frozenset[int]:
        """All tokens that end a turn."""
        return self._newest.policy.stop_token_ids

    def update(self, version: int) -> None:
        """Answer with the policy's present weights from now on.

        They take the place of the oldest version that is served. Requests that it has begun end with the
        weights they began with; others for it wait for that, and so does the caller.

        Args:
            version: Theirs; one that is loaded already is loaded anew.

        Raises:
            RuntimeError: It is closed, or the policy's model has other weights than it had.
        """
        with self._updating:
            place = self._find(version) or self._loaded[0]
            place.load(self._source, version)
            with self._lock:
                self._loaded.remove(place)
                self._loaded.append(place)

    def wanted_version(self, model: str) -> int | None:
        """The version that a client asks for by a model's name; ``None`` for the newest.

        Raises:
            ModelNotFound: It is not served.
        """
        if model in ("", self.name):
            return None
        versions = self.versions
        names = {f"{self.name}@{version}": version for version in versions}
        if model in names:
            return names[model]
        stem, _, version = model.rpartition("@")
        if stem == self.name and version.isdecimal():
            there = " and ".join(map(str, versions))
            raise ModelNotFound(
                f"version {version} is not loaded: {there} {'is' if len(versions) == 1 else 'are'}"
            )
        words = f"this server has no model {model!r}{did_you_mean(model, [self.name, *names])}"
        raise ModelNotFound(f"{words}; it serves {' and '.join((self.name, *names))}")

    def prompt(self, token_ids: Sequence[int], max_tokens: int | None, param: str = "messages") -> Prompt:
        """Check that a context can be read, and that its reply fits behind it.

        Args:
            token_ids: The context.
            max_tokens: How long the client wants the reply to be at most; ``None`` for as long as the
                policy's replies are, and there is room.
            param: Where the context came from.

        Raises:
            ContextFull: It does not fit.
            ApiError: It is empty, or has tokens that the model does not know.
        """
        if not token_ids:
            raise ApiError(f"{param} holds no token to continue: send at least one", param=param)
        strange = [token for token in token_ids if not 0 <= token < self._vocabulary]
        if strange:
            words = f"token ids lie from 0 to {self._vocabulary - 1}"
            raise ApiError(f"{param} has the id {strange[0]}: {words}", param=param)
        room = self.context_limit - len(token_ids)
        longest = min(self.sampling.max_new_tokens, max(room, 1)) if max_tokens is None else max_tokens
        if longest > room:
            raise ContextFull(self.context_limit, longest, param)
        return Prompt(list(token_ids), longest)

    def ask(self, prompts: Sequence[Prompt], manner: Manner, *, follow: bool = False) -> Asked:
        """Ask for replies; all are sampled by one version of the weights.

        Args:
            prompts: What is to be continued.
            manner: How.
            follow: Whether the replies are looked at while they grow.

        Returns:
            The replies, those to the first prompt first; to be closed when they are not needed any more. It
            belongs to the event loop that asks.

        Raises:
            Overloaded: Too many wait already.
            ShuttingDown: The policy is closed.
        """
        waiting = sum(one.sampler.waiting for one in self._loaded)
        if waiting and waiting + len(prompts) * manner.count > self._max_waiting:
            raise Overloaded(waiting)
        # Where the version was given up just now the newest says so.
        loaded = (None if manner.version is None else self._find(manner.version)) or self._newest
        request = object()
        choices = []
        for prompt in prompts:
            seed = self._seed() if manner.seed is None else manner.seed % 2**64
            # The first reply to a prompt does not depend on how many there are.
            seeds = [(seed,), *((seed, index) for index in range(1, manner.count))]
            choices += [Choice(self._question(loaded, prompt, manner, one, request)) for one in seeds]
        asked = Asked(choices, loaded.release)
        if follow:
            asked.follow()
        try:
            loaded.sampler.ask_all([choice.question for choice in choices])
        except RuntimeError:
            raise ShuttingDown from None
        return asked

    def close(self) -> None:
        """Refuse what is asked for and end the samplers' threads."""
        for one in self._loaded:
            one.sampler.close()

    def __enter__(self) -> ServedPolicy:
        return self

    def __exit__(self, *fault: object) -> None:
        self.close()

    @property
    def _newest(self) -> LoadedVersion:
        with self._lock:
            return self._loaded[-1]

    def _find(self, version: int) -> LoadedVersion | None:
        with self._lock:
            return next((one for one in self._loaded if one.version == version), None)

    def _question(
        self, loaded: LoadedVersion, prompt: Prompt, manner: Manner, seed: Sequence[int], request: object
    ) -> Question:
        strings = manner.ends.strings
        return Question(
            sequence=loaded.context(prompt.token_ids) if manner.count == 1 else fresh(),
            context=prompt.token_ids,
            uniforms=np.random.default_rng(seed).random(prompt.longest, dtype=np.float32),
            sampling=manner.sampling,
            alternatives=manner.alternatives,
            stop_tokens=self.stop_token_ids.union(manner.stop_tokens),
            stops=StopStrings(strings, self.chat.decode) if strings else None,
            version=manner.version,
            request=request,
        )

    def _seed(self) -> int:
        with self._lock:
            return int(self._rng.integers(2**63))


def _load(
    policy: TransformersPolicy,
    tokenizer: PreTrainedTokenizerBase,
    version: int | None,
    max_batch: int | None,
) -> LoadedVersion:
    """A copy of a policy, whose weights stand for a version."""
    own = TransformersPolicy(
        copied_model(policy.model),
        tokenizer,
        sampling=policy.sampling,
        max_context=policy.max_context,
        max_batch=max_batch or policy.max_batch,
    )
    own.version = policy.version
    return LoadedVersion(own, version)


def _vocabulary(model: torch.nn.Module) -> int:
    """How many tokens a Hugging Face model can read."""
    embedding = model.get_input_embeddings()  # type: ignore[operator]
    return int(embedding.weight.shape[0])
