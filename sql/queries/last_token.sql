-- The last token that was drawn; 0 before the first claim.
select case when is_called then last_value else last_value - 1 end as "last!"
  from elf_lease_token
