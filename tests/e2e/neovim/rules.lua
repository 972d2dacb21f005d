-- The rules' proposal, all by code actions.
local nvim = ...
local client = nvim.attached()
local seen = { encoding = client.offset_encoding, root = client.root_dir, filetype = vim.bo.filetype }
seen.row = nvim.drawn('Optimise')
vim.fn.search('softmax_rows(')
seen.hover = nvim.hover()
local original = nvim.text()

seen.actions = nvim.choose(vim.lsp.buf.code_action, 'Optimise', 'Trust this folder')
nvim.drawn('verified on the emulator', 60)
seen.said = nvim.said('verified on the emulator')
seen.proposal = nvim.row()

nvim.choose(vim.lsp.buf.code_action, 'Show diff')
nvim.await('the candidate', 10, function()
  return vim.api.nvim_buf_get_name(0):find('/shown/', 1, true)
end)
seen.candidate = nvim.text()
vim.cmd('vert diffsplit #')
seen.beside = { nvim.text() == original, vim.wo.diff, #vim.api.nvim_list_wins() }
vim.cmd('diffoff! | only')

vim.fn.search('softmax_rows(')
seen.offered = nvim.choose(vim.lsp.buf.code_action, 'Accept')
nvim.await('the edit', 10, function()
  return nvim.text() ~= original
end)
seen.accepted = nvim.text()
vim.cmd.undo()
seen.undone = nvim.text() == original
seen.again = nvim.choose(vim.lsp.buf.code_action)
return seen
