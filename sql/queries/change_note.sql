-- Changes the given columns of a note that a key reaches; null leaves a column as it is. Only who reaches a note learns
-- that it is refused.
-- $1 note id, $2 tenant, $3 project or null for all, $4 agent or null for all, $5 text, $6 scope,
-- $7 type, $8 importance, $9 confidence, $10 status, $11 whether to set key, $12 key,
-- $13 whether to set expires_at, $14 expires_at, $15 whether to set title, $16 title, $17 source_ref, $18 metadata
update memory_notes n
   set text = coalesce($5, n.text), scope = coalesce($6, n.scope), type = coalesce($7, n.type),
       importance = case when $8::real is null then n.importance else $8 end,
       confidence = case when $9::real is null then n.confidence else $9 end,
       status = coalesce($10, n.status), key = case when $11 then $12 else n.key end,
       expires_at = case when $13 then $14 else n.expires_at end,
       title = case when $15 then $16 else n.title end,
       source_ref = case when $17::jsonb is not null then $17
                         when $5 <> n.text then elf_without_cuts(n.source_ref) else n.source_ref end,
       metadata = coalesce($18::jsonb, n.metadata),
       updated_at = now()
 where n.note_id = $1
   and case when elf_is_reached(n, $2, $3, $4) then elf_may_change(n) end
