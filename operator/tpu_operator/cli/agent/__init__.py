"""`kubectl tpu mcp`: the commands as tools of an MCP server, for coding agents (docs/agents.md).

`overview` lists what there is, `tools` are the tools, which run the commands themselves, `server` offers
them, and `command` starts it. Only `tools` and `server` need the MCP SDK, which the operator's
image does not have.
"""
