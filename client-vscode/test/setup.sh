#!/usr/bin/env bash
# Installs a real VS Code workbench (code-server from npm) for test/workbench.mjs into DIR (default ../build/code-server).
# usage: setup.sh [DIR]      needs: node 20, npm, python3, make, g++, ripgrep
set -euo pipefail
dir=${1:-$(dirname "$0")/../../build/code-server}
version=4.100.3
mkdir -p "$dir"
cd "$dir"
[ -e .done-$version ] && exit 0
[ -e package.json ] || echo '{"private": true}' > package.json
quiet() { "$@" > setup.log 2>&1 || { tail -40 setup.log; exit 1; }; }
quiet npm install --no-save --no-audit --no-fund --ignore-scripts code-server@$version
quiet npm rebuild argon2
vscode=node_modules/code-server/lib/vscode
(cd $vscode && quiet npm install --no-save --no-audit --no-fund --ignore-scripts --omit=dev)
(cd $vscode && quiet npm rebuild @vscode/spdlog native-watchdog)
(cd $vscode/node_modules/node-pty && quiet node "$(npm root -g)/npm/node_modules/node-gyp/bin/node-gyp.js" rebuild --nodedir=/usr)
ln -sfn node_modules $vscode/node_modules.asar
mkdir -p $vscode/node_modules/@vscode/ripgrep/bin
ln -sfn "$(command -v rg)" $vscode/node_modules/@vscode/ripgrep/bin/rg
touch .done-$version
