"""Every mistake in a command is one line that names it, with exit code 2."""

from pathlib import Path

import pytest

import tests.art_trainer.toy_envs  # noqa: F401 (registers toy/Echo-v0)

ENV = "--env tests.art_trainer.toy_envs:toy/Echo-v0"
EVAL = f"eval {ENV} --policy"
SELF_PLAY = "self-play --model scratch --env tests.art_gym.toy_games:toy/Race-v0"
JUDGE = f"judge eval {ENV}"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("eval", "nothing to evaluate"),
        ("eval --env art/Emial-v0 --policy random", "no environment 'art/Emial-v0'"),
        (f"{EVAL} random --env-args wrods=2", "no argument `wrods`; did you mean `words`"),
        (f"{EVAL} random --env-args words=9", "must be 1 to 3, not 9"),
        (f"{EVAL} random --env-args words", "--env-args takes key=value"),
        (f"{EVAL} baseline:scriptd", "did you mean `scripted`?"),
        (f"{EVAL} random --split tset", "did you mean `test`?"),
        (f"{EVAL} random --compare", "--compare needs at least two"),
        (f"{EVAL} scriptde", "no policy 'scriptde'; did you mean `scripted`?"),
        (f"{EVAL} ./runs/gone", "no model at './runs/gone'"),
        (f"{EVAL} openai:", "write openai:MODEL@URL"),
        (f"{EVAL} .", "no folder with a model, no baseline of the environment"),
        (f"{EVAL} random --by wrod", "Echo-v0 have no field `wrod`"),
        (f"train {ENV} --set lerning_rate=1", "--set: no setting `lerning_rate`; did you"),
        (f"train {ENV} --num-generations 1", "num_generations from flag"),
        (f"train {ENV} --set opponent=copy", "settings of art-trainer self-play"),
        (
            f"train {ENV} --warm-start scripted --set warm_start_rounds=2 --set warm_start_keep=successes",
            "from the second round on all is imitated",
        ),
        (f"train {ENV} --warm-start scritped", "no player `scritped`; did you mean"),
        (f"train {ENV} --warm-start scritped --dry-run", "no player `scritped`; did you mean"),
        (f'train {ENV} --dry-run --reward rubric --set rubric={{"quick":"x"}}', "`quick` has weight x"),
        ("train --config missing.yaml", "--config: no such file: missing.yaml"),
        ("train --recipe emial", "no recipe `emial`; did you mean `email`?"),
        ("train --resume-step 1", "add --resume RUN"),
        ("train --log tensorbord", "did you mean `tensorboard`?"),
        ("train --set log=3", "log is 3"),
        (f"{SELF_PLAY} --opponent bset", "no policy 'bset'; did you mean `best`"),
        (f"{SELF_PLAY} --opponent any --seat secnd_1", "no seat `secnd_1`; did you mean `second_1`"),
        (f"{SELF_PLAY} --seat first_0", "--seat needs an opponent that does not learn; self does"),
        (f"{SELF_PLAY} --set warm_start=anny", "first_0 has no player `anny`; did you mean `any`"),
        (f"{SELF_PLAY} --set warm_start_noise=0.2 --set warm_start=any", "self-play knows only 0.0"),
        (f"{SELF_PLAY} --set warm_start_rounds=2 --set warm_start=any", "self-play knows only 1"),
        (f"{SELF_PLAY} --set warm_start_keep=successes --set warm_start=any", "self-play knows only all"),
        (f"{SELF_PLAY} --set engine=openai:a@http://127.0.0.1:1/v1", "leave engine and backend out"),
        (f"{SELF_PLAY} --set backend=ray", "leave engine and backend out"),
        ("train --env art/2048Duel-v0", "is a game with several seats: use art-trainer self-play"),
        ("self-play --env art/Email-v0", "is an environment with one seat: use art-trainer train"),
        (f"{SELF_PLAY} --env toy/Rice-v0", "no game `toy/Rice-v0`; did you mean `toy/Race-v0`"),
        (f"{SELF_PLAY} --env-args goal=low", "`goal` must be a whole number"),
        (f"{JUDGE} --judge rubrik", "no policy 'rubrik'; did you mean `rubric`"),
        (f"{JUDGE} --judge rubric --judge rubric", "--judge rubric is given twice"),
        (f"{JUDGE} --policies scriptd", "scriptd"),
        (f"{JUDGE} --policies random --policies random", "--policies random is given twice"),
        (f"{JUDGE} --env toy/Nothing-v0", "no environment 'toy/Nothing-v0'"),
        ("judge eval --episodes .", "no two recorded episodes"),
        ("judge eval --episodes . --size 4", "judges what was recorded: leave --size out"),
        (f"{JUDGE} --judge openai:m@http://localhost:1/v1 --judge-args sed=1", "unexpected keyword"),
    ],
)
def test_a_mistake_is_one_line_and_begins_no_run(arguments, words, refused):
    assert words in refused(*arguments.split())
    assert not Path("runs").exists()
