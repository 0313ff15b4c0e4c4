"""Adds a note and finds it, with a client that was generated from the description of the API:

    curl -o openapi.json http://127.0.0.1:9465/openapi.json
    openapi-python-client generate --path openapi.json --output-path elf_client --meta none
    ELF_API_KEY=elf_… python generated_client.py "Parcels that are lost are paid back."
"""

import os
import sys

from elf_client.api.notes import add_notes
from elf_client.api.searches import search_notes
from elf_client.client import AuthenticatedClient
from elf_client.models import NewNote, NewNotes, NoteFilter, SearchRequest

url = os.environ.get("ELF_API_URL", "http://127.0.0.1:9465")
with AuthenticatedClient(base_url=url, token=os.environ["ELF_API_KEY"], timeout=60) as client:
    note = NewNote(text=sys.argv[1], project_id="shop", agent_id="clerk", scope="team", type_="faq")
    added = add_notes.sync(client=client, body=NewNotes(notes=[note]), wait="indexed")
    print("added", added.note_ids[0], "indexed", added.indexed)
    asked = SearchRequest(query=sys.argv[1], limit=3, filter_=NoteFilter(project_id="shop"))
    for item in search_notes.sync(client=client, body=asked).items:
        print(item.note_id, item.passage.text)
