-- A language model's proposal, by lenses.
local nvim = ...
nvim.attached()
nvim.drawn('Trust this folder')
vim.fn.search('softmax_rows(')
nvim.choose(vim.lsp.codelens.run, 'Trust this folder')
nvim.await('trust', 10, function()
  return not nvim.row():find('Trust', 1, true)
end)

local original, seen = nvim.text(), { log = vim.lsp.get_log_path() }
nvim.answers = { 'Optimise' }
vim.lsp.codelens.run() -- the only one: no menu
seen.proposal = nvim.drawn('verified on the emulator', 60)
seen.hover = nvim.hover()
nvim.choose(vim.lsp.codelens.run, 'Accept')
nvim.await('the edit', 10, function()
  return nvim.text() ~= original
end)
seen.accepted = nvim.text()
vim.cmd.undo()
seen.undone = nvim.text() == original
return seen
