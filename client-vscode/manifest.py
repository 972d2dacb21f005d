"""Writes package.json: what is said here, and the settings that the server declares.

usage: python manifest.py          (a test fails when package.json is stale)
"""

import json
from pathlib import Path

from cuda_agent import __version__, config


def manifest() -> dict:
    commands = {
        "cudaAgent.restart": "Restart the Server",
        "cudaAgent.showLogs": "Show the Log",
        "cudaAgent.setRunCommand": "Set the Run Command",
        "cudaAgent.chooseModel": "Choose the Language Model",
        "cudaAgent.setApiKey": "Set the API Key",
        "cudaAgent.printDebugInformation": "Print Debug Information",
    }
    return {
        "name": "cuda-agent",
        "displayName": "CUDA Agent",
        "description": "Makes CUDA kernels faster and proves it: registers and spills beside the code, verified speedups as diffs.",
        "version": __version__,
        "publisher": "cuda-agent",
        "license": "Apache-2.0",
        "private": True,
        "engines": {"vscode": "^1.95.0"},
        "categories": ["Programming Languages", "Linters", "Other"],
        "keywords": ["cuda", "gpu", "kernel", "optimization"],
        "extensionKind": ["workspace"],
        "capabilities": {
            "untrustedWorkspaces": {
                "supported": "limited",
                "description": "Until the workspace is trusted only facts of the text are shown; nothing is compiled or run.",
                "restrictedConfigurations": list(config.restricted()),
            },
            "virtualWorkspaces": {"supported": False, "description": "Kernels are compiled and run from files on disk."},
        },
        "activationEvents": ["onLanguage:cuda-cpp", "onLanguage:cuda"],
        "main": "./dist/extension.js",
        "contributes": {
            "configuration": config.contributes(),
            "commands": [{"command": name, "title": title, "category": "CUDA Agent"} for name, title in commands.items()],
        },
        "scripts": {
            "check": "tsc",
            "bundle": "esbuild src/extension.ts --bundle --platform=node --format=cjs --external:vscode --minify --outfile=dist/extension.js",
            "package": "npm run bundle && vsce package --no-dependencies --skip-license --allow-missing-repository --out dist/cuda-agent.vsix",
            "workbench": "node test/workbench.mjs",
        },
        "devDependencies": {
            "@types/node": "^20.0.0",
            "@types/vscode": "~1.95.0",
            "@vscode/vsce": "^3.7.1",
            "esbuild": "^0.28.0",
            "playwright-core": "^1.55.0",
            "typescript": "^5.9.0",
            "vscode-languageclient": "^11.0.0",
        },
    }  # fmt: skip


def text() -> str:
    return json.dumps(manifest(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    Path(__file__).with_name("package.json").write_text(text(), encoding="utf-8")
