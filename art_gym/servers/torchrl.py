"""Text environments in TorchRL: its ``GymEnv`` learns what our text space is.

TorchRL keeps a specification for every Gymnasium space that it knows and refuses the others. Texts travel in
its tensor dictionaries as ``NonTensorData``, one ``str`` each, and as a stack of them if steps or
environments are stacked.

    register_text_space()
    env = GymEnv("art/Email-v0")
    data = env.reset(seed=3)
    data["action"] = 'search("budget")'
    data = env.step(data)["next"]

``env.set_seed(3)`` resets at once, as ``GymEnv`` does for every environment, so that the ``env.reset()``
after it begins that seed's *second* episode; ``env.reset(seed=3)`` begins the first, as Gymnasium does.
"""

from __future__ import annotations

from typing import Any

from art_gym.spaces import UnicodeText

__all__ = ["register_text_space"]


def register_text_space() -> None:
    """Teach TorchRL's ``GymEnv`` and ``GymWrapper`` the text space; doing it again changes nothing.

    Raises:
        ModuleNotFoundError: If TorchRL is not installed.
    """
    try:
        from torchrl.data import NonTensor  # type: ignore[import-untyped]
        from torchrl.envs.libs.gym import register_gym_spec_conversion  # type: ignore[import-untyped]
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"this needs TorchRL: pip install torchrl ({error})") from error

    @register_gym_spec_conversion(UnicodeText)  # type: ignore[untyped-decorator]  # TorchRL has no type hints
    def convert(space: UnicodeText, device: Any = None, **_: Any) -> Any:
        # The example is the action of TorchRL's random policy: the empty reply, which every text space holds.
        return NonTensor((), device=device, example_data="")
