-- Raises the sequence of tokens to $1 at least, after a restore or a failover has lost the newest
-- tokens. Returns the last token that was drawn. `setval` could undo a token that a claim draws at
-- the same time. So it is used only if the gap is larger than claims can draw meanwhile.
select case when $1 < s.last_value or ($1 = s.last_value and s.is_called) then s.last_value
            when $1 - s.last_value > 100000 then pg_catalog.setval('elf_lease_token', $1)
            else (select max(pg_catalog.nextval('elf_lease_token'))
                    from generate_series(s.last_value, $1))
       end as "last!"
  from elf_lease_token s
