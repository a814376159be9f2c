"""What programs run on: `mock.py` (replies given beforehand), `openai.py` (a server of that protocol).

The local runtime is `radicel.runtime.LocalRuntime`. Nothing is imported here, so that each costs only what it needs.
"""
