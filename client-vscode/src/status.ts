// The language status item: the device, the engine and what runs now.

import * as vscode from "vscode";

interface Status {
  trusted: boolean;
  engine: string;
  device: string;
}

interface Job {
  job: string;
  kernel: string;
  state: string;
  percentage: number;
  message: string;
  best: string | null;
}

export class StatusItem implements vscode.Disposable {
  private readonly item: vscode.LanguageStatusItem;
  private readonly jobs = new Map<string, Job>();
  private status: Status = { trusted: vscode.workspace.isTrusted, engine: "starting", device: "auto" };

  constructor(selector: vscode.DocumentSelector) {
    this.item = vscode.languages.createLanguageStatusItem("cudaAgent.status", selector);
    this.item.name = "CUDA Agent";
    this.item.command = { title: "Show log", command: "cudaAgent.showLogs" };
    this.draw();
  }

  update(status: Status): void {
    this.status = status;
    this.draw();
  }

  job(job: Job): void {
    if (job.state === "running") {
      this.jobs.set(job.job, job);
    } else {
      this.jobs.delete(job.job);
    }
    this.draw();
  }

  failed(message: string): void {
    this.item.severity = vscode.LanguageStatusSeverity.Error;
    this.item.text = "CUDA Agent: not running";
    this.item.detail = message;
    this.item.busy = false;
  }

  private draw(): void {
    const [running] = this.jobs.values();
    this.item.severity = vscode.LanguageStatusSeverity.Information;
    this.item.busy = running !== undefined;
    this.item.text = running ? `CUDA Agent: ${running.kernel} ${running.percentage} %` : `CUDA Agent: ${this.status.device}`;
    const idle = this.status.trusted ? `engine ${this.status.engine}` : "text facts only: this workspace is not trusted";
    this.item.detail = running ? [running.message, running.best && `best ${running.best}`].filter(Boolean).join(" · ") : idle;
  }

  dispose(): void {
    this.item.dispose();
  }
}
