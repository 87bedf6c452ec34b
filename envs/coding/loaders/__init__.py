"""Loading coding task sets: HumanEval, MBPP, APPS, CodeContests, Exercism."""
