"""Examples may take their time: these tests run beside whatever else keeps the machine busy."""

from hypothesis import settings

settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
