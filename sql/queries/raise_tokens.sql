-- Tokens rise for ever, but a Postgres that was restored from a backup has forgotten
-- some. None up to $1 is given out from now on. `setval` could set back what others
-- draw at the same moment, so it is for leaps that nobody draws in a moment. Gives the
-- last token that was given out.
select case when $1 < s.last_value or ($1 = s.last_value and s.is_called) then s.last_value
            when $1 - s.last_value > 100000 then setval('elf_lease_token', $1)
            else (select max(nextval('elf_lease_token'))
                    from generate_series(s.last_value, $1))
       end as "last!"
  from elf_lease_token s
