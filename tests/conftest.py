"""What all tests share: Hypothesis profiles, and pytest's own helper for tests of plugins."""

import os

from hypothesis import settings

from strategies.profiles import register_profiles

pytest_plugins = ["pytester"]

register_profiles()
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))
