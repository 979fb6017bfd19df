"""Hypothesis profiles for development, continuous integration and long searches."""

from hypothesis import HealthCheck, settings

# Cases per test; the same three numbers as the audit's budgets quick, standard and deep.
EXAMPLES = {"dev": 25, "ci": 200, "deep": 2000}


def register_profiles() -> None:
    """Register the profiles "dev", "ci" and "deep"; load one with `settings.load_profile`.

    "ci" is derandomised, so that the same commit always sees the same cases.
    None has a deadline: a case's first run compiles its kernel, which takes seconds.
    """
    for name, examples in EXAMPLES.items():
        settings.register_profile(
            name,
            # the parent is fixed, since the profile that is loaded at the time would else leak into ours
            settings.get_profile("default"),
            max_examples=examples,
            derandomize=name == "ci",
            database=None if name == "ci" else settings.get_profile("default").database,
            deadline=None,
            print_blob=True,
            suppress_health_check=(HealthCheck.too_slow,),
        )
