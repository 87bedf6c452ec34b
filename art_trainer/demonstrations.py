"""What a scripted player of the environment says, in the tokens of the policy that is to learn from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from art_trainer.chat import ChatFormat
from art_trainer.episodes import Episode, Span, TokenHistory
from art_trainer.policy import Conversation, Reply
from art_trainer.rollout import EnvPool, MakeEnv, Start, rollout
from art_trainer.scripted_policy import ScriptedPolicy
from art_trainer.transformers_policy import TransformersPolicy


def collect_demonstrations(
    policy: TransformersPolicy,
    make_env: MakeEnv | EnvPool,
    player: str,
    starts: Sequence[Start],
    *,
    keep: Callable[[Episode], bool] = lambda episode: not episode.failed,
) -> list[Episode]:
    """Let a scripted player play, and write its episodes in the policy's tokens.

    Args:
        policy: Whose chat format the replies are encoded with.
        make_env: Makes one environment; its ``baselines`` or ``teachers`` have the player.
        player: The player's name.
        starts: Where to start.
        keep: Which episodes to keep, such as ``lambda episode: bool(episode.success)``.

    Returns:
        Episodes whose histories have the player's replies as sampled tokens, with log-probs of 0.
    """
    episodes = rollout(_Demonstrator(player, policy.format), make_env, starts)
    return [episode for episode in episodes if keep(episode)]


def collect_corrections(
    policy: TransformersPolicy, make_env: MakeEnv | EnvPool, player: str, starts: Sequence[Start]
) -> list[Episode]:
    """Let the policy play, and write down at each turn what the scripted player would have replied.

    DAgger's data (Ross et al., 2011, arXiv:1011.0686): a policy that only ever saw its teacher's situations
    does not know what to do in its own. The player is asked without its reply being played, so it must decide
    by what it sees, as players of a board do, and not by what it said before.

    Args:
        policy: Who plays, sampling as it is set to.
        make_env: Makes one environment; its ``baselines`` or ``teachers`` have the player.
        player: The player's name.
        starts: Where to start.

    Returns:
        The policy's episodes that did not fail. Each turn is a history of its own that ends with the player's
        reply as sampled tokens, with log-probs of 0.
    """
    episodes = rollout(_Corrector(policy, player), make_env, starts)
    return [episode for episode in episodes if not episode.failed]


class _Demonstrator:
    """A scripted player that also writes down the tokens its replies are in someone else's format."""

    def __init__(self, player: str, chat: ChatFormat) -> None:
        self._script = ScriptedPolicy(player)
        self._chat = chat
        self._histories: dict[Conversation, list[list[Span]]] = {}
        self.name = self._script.name
        self.version = 0

    def submit(self, conversation: Conversation) -> None:
        """Write down the observation and ask the script."""
        histories = self._histories.setdefault(conversation, [])
        messages, tools = conversation.messages, conversation.tools
        glue = self._chat.continuation(messages, tools) if histories else None
        if glue is None:
            histories.append([Span(tuple(self._chat.prompt(messages, tools)))])
        else:
            histories[-1].append(Span(tuple(glue)))
        self._script.submit(conversation)

    def collect(self) -> list[tuple[Conversation, Reply]]:
        """Return the script's replies, written down as sampled."""
        answered = self._script.collect()
        for conversation, reply in answered:
            if reply.error is None:
                history = self._histories[conversation][-1]
                turn = _replies(conversation) - 1
                history.append(_shown(self._chat, reply.text, turn))
        return answered

    def release(self, conversation: Conversation) -> tuple[TokenHistory, ...]:
        """Return what was written down."""
        self._script.release(conversation)
        histories = self._histories.pop(conversation, [])
        return tuple(TokenHistory(tuple(spans)) for spans in histories if len(spans) > 1)


class _Corrector:
    """A policy at whose every turn a scripted player is asked too, and only the player is written down."""

    def __init__(self, policy: TransformersPolicy, player: str) -> None:
        self._policy = policy
        self._script = ScriptedPolicy(player)
        self._shadows: dict[Conversation, Conversation] = {}
        self._histories: dict[Conversation, list[TokenHistory]] = {}
        self.name = f"{policy.name} corrected by {player}"
        self.version = policy.version

    def submit(self, conversation: Conversation) -> None:
        """Ask the policy, and the player at once: the environment stands where the policy will reply."""
        shadow = self._shadows.get(conversation)
        if shadow is None:
            shadow = self._shadows[conversation] = Conversation(
                conversation.env, conversation.messages, conversation.tools, conversation.rng.spawn(1)[0], 0
            )
        # The script appends its reply to the messages it answers; the policy's conversation keeps its own.
        shadow.messages = list(conversation.messages)
        self._script.submit(shadow)
        [(_, advice)] = self._script.collect()
        if advice.error is not None:
            raise RuntimeError(f"the player {self._script.name} failed: {advice.error}")
        chat = self._policy.format
        prompt = Span(tuple(chat.prompt(conversation.messages, conversation.tools)))
        spans = (prompt, _shown(chat, advice.text, _replies(conversation)))
        self._histories.setdefault(conversation, []).append(TokenHistory(spans))
        self._policy.submit(conversation)

    def collect(self) -> list[tuple[Conversation, Reply]]:
        """Return the policy's replies."""
        return self._policy.collect()

    def release(self, conversation: Conversation) -> tuple[TokenHistory, ...]:
        """Return what the player would have said, turn by turn."""
        self._policy.release(conversation)
        shadow = self._shadows.pop(conversation, None)
        if shadow is not None:
            self._script.release(shadow)
        return tuple(self._histories.pop(conversation, []))


def _shown(chat: ChatFormat, text: str, turn: int) -> Span:
    tokens = chat.reply(text)
    return Span(tuple(tokens), turn, (0.0,) * len(tokens))


def _replies(conversation: Conversation) -> int:
    """How many replies were given: observations and replies take turns after the instructions."""
    messages = conversation.messages
    return (len(messages) - int(messages[0]["role"] == "system")) // 2
