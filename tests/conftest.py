"""Settings of all tests."""

from hypothesis import HealthCheck, Phase, settings

# A machine that is busy with something else must not fail a test: no time limits on examples, nor on making them.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
# Mutated code has to fail, and nobody reads with which example.
settings.register_profile("mutation", settings.get_profile("untimed"), phases=[Phase.explicit, Phase.generate])
# Which tests run which lines is seen after a few examples.
settings.register_profile("mutation-map", settings.get_profile("untimed"), max_examples=10)
