-- The last token that was given out; 0 when none was.
select case when is_called then last_value else last_value - 1 end as "last!"
  from elf_lease_token
