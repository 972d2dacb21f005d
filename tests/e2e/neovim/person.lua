-- What a person does at Neovim, without a window. Run as `nvim --headless --clean -u NONE -l person.lua STEPS FILE`:
-- FILE is opened, STEPS (a Lua file) gets the functions below and returns what it saw, which is printed as JSON.
-- A step that waits in vain ends everything and says what was on the screen.
local nvim = { questions = {} }
local slow = tonumber(vim.env.PATIENCE)

function nvim.await(what, seconds, holds)
  local found
  vim.wait(seconds * 1000 * slow, function()
    found = holds()
    return found
  end, 20)
  if not found then
    local seen = { what = what, messages = nvim.messages(), row = nvim.row(), questions = nvim.questions }
    error('waited ' .. seconds .. ' s for ' .. vim.inspect(seen))
  end
  return found
end

function nvim.messages()
  return vim.fn.execute('messages')
end

function nvim.said(part, seconds)
  return nvim.await(part, seconds or 10, function()
    return nvim.messages():find(part, 1, true) and nvim.messages()
  end)
end

function nvim.text()
  return table.concat(vim.api.nvim_buf_get_lines(0, 0, -1, true), '\n') .. '\n'
end

-- Every menu is kept in `questions` and answered by typing the number of the line that starts with one of `answers`,
-- into Neovim's own `vim.ui.select`.
local select = vim.ui.select
function vim.ui.select(items, options, chosen)
  local lines = vim.tbl_map(options.format_item or tostring, items)
  table.insert(nvim.questions, { prompt = options.prompt, lines = lines })
  for number, line in ipairs(lines) do
    for _, answer in ipairs(nvim.answers) do
      if vim.startswith(line, answer) then
        vim.api.nvim_input(number .. '<CR>')
        return select(items, options, chosen)
      end
    end
  end
  chosen(nil)
end

-- Opens a menu with `ask` and chooses; more answers are for questions that follow, without one nothing is chosen.
-- Returns the menu's lines.
function nvim.choose(ask, ...)
  nvim.answers = { ... }
  local before = #nvim.questions
  ask()
  nvim.await('a menu', 10, function()
    return #nvim.questions > before
  end)
  return nvim.questions[before + 1].lines
end

function nvim.attached()
  return nvim.await('the server', 20, function()
    local client = vim.lsp.get_clients({ bufnr = 0 })[1]
    return client and client.initialized and client
  end)
end

function nvim.hover()
  vim.lsp.buf.hover()
  local window = nvim.await('a hover', 10, function()
    return vim.iter(vim.api.nvim_list_wins()):find(function(one)
      return vim.api.nvim_win_get_config(one).relative ~= ''
    end)
  end)
  local lines = vim.api.nvim_buf_get_lines(vim.api.nvim_win_get_buf(window), 0, -1, true)
  vim.api.nvim_win_close(window, true)
  return table.concat(lines, '\n')
end

-- The lenses as they are drawn behind the kernel's name.
function nvim.row()
  local drawn = {}
  for name, space in pairs(vim.api.nvim_get_namespaces()) do
    if vim.startswith(name, 'nvim.lsp.codelens') then
      for _, mark in ipairs(vim.api.nvim_buf_get_extmarks(0, space, 0, -1, { details = true })) do
        for _, chunk in ipairs(mark[4].virt_text) do
          table.insert(drawn, chunk[1])
        end
      end
    end
  end
  return table.concat(drawn)
end

function nvim.drawn(part, seconds)
  return nvim.await('a lens with ' .. part, seconds or 10, function()
    return nvim.row():find(part, 1, true) and nvim.row()
  end)
end

vim.lsp.set_log_level('trace') -- every message, in the log
dofile(vim.env.NEOVIM_CONFIGURATION)
vim.cmd.edit(arg[2])
local seen = assert(loadfile(arg[1]))(nvim)
seen.questions = nvim.questions
io.stdout:write('\n' .. vim.json.encode(seen) .. '\n')
