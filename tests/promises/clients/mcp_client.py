"""Calls tools of an MCP server and prints what it answered, as JSON.

    mcp_client.py URL                     over HTTP, with the key in $ELF_API_KEY
    mcp_client.py PROGRAM [ARGUMENT …]    over stdin and stdout of a program

Reads [[tool, arguments], …] from stdin.
"""

import asyncio
import json
import os
import sys

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client


async def main(server):
    if not server[0].startswith("http"):
        return await talk(StdioServerParameters(command=server[0], args=server[1:], env=dict(os.environ)))
    headers = {"Authorization": f"Bearer {os.environ['ELF_API_KEY']}"}
    async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
        await talk(streamable_http_client(server[0], http_client=http))


async def talk(server):
    async with Client(server) as client:
        tools = (await client.list_tools()).tools
        results = []
        for name, arguments in json.load(sys.stdin):
            result = await client.call_tool(name, arguments)
            [answer] = result.content
            results.append({"is_error": bool(result.is_error), "content": json.loads(answer.text)})
        print(json.dumps({
            "server": client.server_info.name,
            "protocol": client.protocol_version,
            "tools": {tool.name: tool.input_schema for tool in tools},
            "results": results,
        }))


asyncio.run(main(sys.argv[1:]))
