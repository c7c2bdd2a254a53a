"""`make docs`: writes what is generated from the parser and the configuration's models."""

from tests.docs import completion, manual

manual.write()
completion.write()
